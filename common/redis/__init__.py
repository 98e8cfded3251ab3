"""Redis: how processes connect, which users it has, which versions are refused."""
