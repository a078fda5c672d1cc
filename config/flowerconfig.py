"""Flower's own options: loopback only, behind a password, read-only."""

from __future__ import annotations

from config.settings import get_settings

_settings = get_settings()

address = _settings.flower_host
port = _settings.flower_port
basic_auth = [_settings.flower_login]
read_only = True
broker_api = _settings.broker_api or None
natural_time = True
