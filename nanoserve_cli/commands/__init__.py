"""One module a command: parse, call one function that returns data, render it."""
