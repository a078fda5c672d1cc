"""What the system is made of: data, no behaviour."""
