"""Records and run directories for tests of whatever reads them."""
