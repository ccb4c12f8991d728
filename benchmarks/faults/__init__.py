"""What goes wrong on purpose: processes killed, files damaged, workers lost; and the judges of what is left."""
