"""The `nanoserve` command-line tool: parse, call one function of the library, render what it returns."""
