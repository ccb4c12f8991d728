"""What the package's rooms have in common: files, the command line, names that are imported when they are needed."""
