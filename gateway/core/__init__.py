"""Pure decisions of the gateway: values in, values out."""
