"""Requests and answers, in no dialect: values and their limits."""
