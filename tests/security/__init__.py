"""What a party can learn from its view."""
