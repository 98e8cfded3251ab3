"""What a pull decides: which registry may be asked, how it is answered, and which bytes are still missing. Pure."""
