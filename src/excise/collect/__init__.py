"""The only room that touches the machine under test; it parses no foreign format."""
