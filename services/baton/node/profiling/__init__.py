"""What is measured before a node serves: its speed, its wire formats, its machine."""
