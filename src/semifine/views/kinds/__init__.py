"""One file a kind of view; a file that is here is found."""
