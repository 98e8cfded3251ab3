"""Images: decoded, encoded, counted."""
