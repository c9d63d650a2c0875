module holdfast/jepsen/between

go 1.19
