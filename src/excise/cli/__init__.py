"""The command line: one file a command, which holds its arguments and calls the API."""
