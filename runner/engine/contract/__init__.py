"""What every engine offers to the server. No engine is imported here."""
