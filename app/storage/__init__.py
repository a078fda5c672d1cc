"""Object stores: one contract, implemented by a folder and by S3, and the layout of keys."""
