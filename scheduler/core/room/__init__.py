"""What a load would find now, and who may go to make room for it."""
