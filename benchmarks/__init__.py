"""Speed and thrift, measured beside what a user would run instead. See README.md here for the method."""
