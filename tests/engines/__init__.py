"""The engines that only tests use: the oracle and the fake."""
