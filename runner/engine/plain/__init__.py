"""The engines that are not made for speed: the oracle and the fake."""
