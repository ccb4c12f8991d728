"""What the package's rooms have in common: files, tables, graphs, the command line, names imported when needed."""
