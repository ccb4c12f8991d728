"""One network, trained by four frameworks. Each module is imported in a process of its own."""
