"""The runners of the node: started, watched, adopted, stopped."""
