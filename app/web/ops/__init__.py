"""Operations: what goes on, what failed, and acts on it; each subject has pages and addresses of the JSON API."""
