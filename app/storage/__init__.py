"""Object stores: one contract, a folder and S3."""
