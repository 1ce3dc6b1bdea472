"""Published methods to stand beside ours, one file each, with their own bounds as they are stated."""
