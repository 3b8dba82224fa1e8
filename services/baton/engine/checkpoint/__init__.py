"""What model folders and adapters say of themselves, read without any framework."""
