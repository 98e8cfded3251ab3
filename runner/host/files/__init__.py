"""Files of models on disk: blobs, manifests and plain files, their digests and their inspection."""
