"""Tools that several rooms share: files, tables, graphs, the command line, and names imported when needed."""
