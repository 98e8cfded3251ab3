"""The devices of this build: listed, checked, lent, capped."""
