"""What a request comes to with the model that it names. Pure."""
