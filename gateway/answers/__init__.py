"""One answer: from the prompt through its replicas to its parts."""
