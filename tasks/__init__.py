"""Thin Celery tasks: decode, call one function of app/, publish what follows."""
