"""The processes of the Procfile on one machine: `perennial up` supervises them, or systemd does."""
