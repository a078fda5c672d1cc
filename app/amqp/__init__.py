"""The wire: connections, publishing with confirms, requests and replies, deliveries as they came."""
