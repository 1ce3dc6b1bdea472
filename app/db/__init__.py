"""Tables, sessions, and every change of state."""
