module ahead

go 1.24
