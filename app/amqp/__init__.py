"""The wire: connections, publishing with confirms, deliveries as they came."""
