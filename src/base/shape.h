// Shape letters, used in every comment of the project:
//   B batch (sequences in a step)   R rows (tokens of all sequences in a step)   T live tokens
//   H hidden width                  V vocabulary                                L layers
//   Hq query heads                  Hk KV heads                                 D head_dim
//   M, N, K  rows, outputs and inner size of a matrix product  y[M,N] = a[M,K] * W[N,K]^T
#pragma once
