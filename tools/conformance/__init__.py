"""Official clients against a real cluster, newest releases and some of a year ago; writes docs/compatibility.md."""
