"""Tell reasoning and tool calls from content while a model writes. Pure."""
