"""What is measured before a node serves: its speed and its wire formats."""
