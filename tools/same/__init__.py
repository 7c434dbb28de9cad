"""Same numbers: runs tiny cases at another commit and in the working tree, and compares all that they produce."""
