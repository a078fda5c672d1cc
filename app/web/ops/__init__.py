"""Operations: each subject has pages and addresses of the JSON API."""
