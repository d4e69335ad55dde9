// Lets ahead.go declare a function without a body.
