// Inverse iteration in the small space of followed eigenvectors, in double precision.
//
// Three blocks of K x K threads, one an entry: the iteration itself, and the Cholesky factors of V^T V
// and W^T W with their inverses. With M = W^T V, N = W^T A V, G = (N - shift M)^-1 and R = M G,
//     x <- G R^7 M x,    z <- (R^8)^T z.
// sizes.cuh, which eigenpair.py writes, defines K, TERMS and THREADS.
#include "sizes.cuh"

static_assert(K == 32 && THREADS == K * K, "a row of a matrix is a warp");

constexpr double SHIFT = 1e-6;
constexpr double DUST = 1e-9;
constexpr unsigned ALL = 0xffffffffu;

struct Complex {
  double x, y;
};

__device__ Complex operator+(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; }
__device__ Complex operator-(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; }
__device__ Complex operator-(Complex a) { return {-a.x, -a.y}; }
__device__ Complex operator*(Complex a, Complex b) {
  return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}
__device__ Complex operator*(double a, Complex b) { return {a * b.x, a * b.y}; }
__device__ double square(Complex a) { return a.x * a.x + a.y * a.y; }
__device__ Complex reciprocal(Complex a) {
  const double r = 1.0 / square(a);
  return {a.x * r, -a.y * r};
}
__device__ double sum(double a) {
  for (int step = 16; step; step /= 2) a += __shfl_xor_sync(ALL, a, step);
  return a;
}
__device__ Complex sum(Complex a) { return {sum(a.x), sum(a.y)}; }

template <class T>
using Square = T[K][K + 1];

// The inverse of a matrix in place, by Gauss-Jordan elimination with pivots from unused rows.
__device__ void invert(Square<Complex>& a, int i, int j) {
  __shared__ int row_of[K];
  unsigned used = 0;
  for (int p = 0; p < K; p++) {
    __syncthreads();
    // every warp looks for the pivot: a positive float orders like its bits, and ends in the row
    const unsigned size = __float_as_uint((float)square(a[j][p])) & ~31u;
    const int r = 31 - (__reduce_max_sync(ALL, used >> j & 1 ? 0u : size | (31 - j)) & 31);
    used |= 1u << r;
    if (i == 0 && j == 0) row_of[p] = r;
    const Complex pivot = reciprocal(a[r][p]), f = a[i][p], g = a[r][j], old = a[i][j];
    __syncthreads();
    if (i == r)
      a[i][j] = j == p ? pivot : g * pivot;
    else
      a[i][j] = j == p ? -(f * pivot) : old - f * (g * pivot);
  }
  __syncthreads();
  const Complex value = a[row_of[i]][j];
  __syncthreads();
  a[i][row_of[j]] = value;
  __syncthreads();
}

// The matrix squared, in place.
__device__ void squared(Square<Complex>& a, int i, int j) {
  Complex total = {0.0, 0.0};
  for (int m = 0; m < K; m++) total = total + a[i][m] * a[m][j];
  __syncthreads();
  a[i][j] = total;
  __syncthreads();
}

// y <- a y, or its transpose times y; a row, or column, for each warp.
template <class T>
__device__ void apply(const Square<T>& a, Complex* y, int i, int j, bool transposed = false) {
  const Complex total = sum((transposed ? a[j][i] : a[i][j]) * y[j]);
  __syncthreads();
  if (j == 0) y[i] = total;
  __syncthreads();
}

// The bilinear form of two vectors.
__device__ Complex form(const Complex* z, const Square<double>& a, const Complex* x, int i, int j) {
  __shared__ Complex parts[K];
  const Complex part = z[i] * sum(a[i][j] * x[j]);
  if (j == 0) parts[i] = part;
  __syncthreads();
  const Complex total = sum(parts[j]);
  __syncthreads();
  return total;
}

__device__ void normalize(Complex* y, int j) {
  const double norm = sqrt(sum(square(y[j])));
  __syncthreads();
  if (threadIdx.x < K) y[j] = (1.0 / norm) * y[j];
  __syncthreads();
}

__device__ void iterate(Square<Complex> (&room)[2], const double* gram, const double* lead,
                        double* rows, double* dual, double* turn, double* weights, int i, int j) {
  __shared__ Complex x[K], z[K];
  Square<Complex>&G = room[0], &R = room[1];
  // M and N take turns in one place
  Square<double>& real = reinterpret_cast<Square<double>&>(R);
  const double m = gram[(K + i) * 4 * K + j], n = gram[(K + i) * 4 * K + 2 * K + j];
  if (i == 0) {
    x[j] = {lead[j], lead[K + j]};
    z[j] = {lead[2 * K + j], lead[3 * K + j]};
  }
  real[i][j] = m;
  __syncthreads();
  Complex c = form(z, real, x, i, j);
  apply(real, x, i, j);
  real[i][j] = n;
  __syncthreads();
  // x is M x by now: its start once more
  if (i == 0) G[0][j] = {lead[j], lead[K + j]};
  __syncthreads();
  const Complex shift = (1.0 + SHIFT) * (form(z, real, G[0], i, j) * reciprocal(c));
  const Complex entry = Complex{n, 0.0} - m * shift;
  __syncthreads();
  G[i][j] = entry;
  invert(G, i, j);
  real[i][j] = m;
  __syncthreads();
  Complex product = {0.0, 0.0};
  for (int l = 0; l < K; l++) product = product + real[i][l] * G[l][j];
  __syncthreads();
  R[i][j] = product;
  __syncthreads();
  apply(R, x, i, j);
  squared(R, i, j);
  apply(R, x, i, j);
  squared(R, i, j);
  apply(R, x, i, j);
  apply(R, z, i, j, true);
  apply(R, z, i, j, true);
  apply(G, x, i, j);
  normalize(x, j);
  normalize(z, j);

  real[i][j] = m;
  __syncthreads();
  c = reciprocal(form(z, real, x, i, j));
  const Complex Mx = sum(real[i][j] * x[j]), zM = sum(real[j][i] * z[j]);
  __syncthreads();
  real[i][j] = n;
  __syncthreads();
  const Complex value = form(z, real, x, i, j) * c;
  if (j == 0) {
    const bool is_real = fabs(value.y) <= DUST * fabs(value.x);
    const Complex times = (is_real ? 1.0 : 2.0) * c, right = zM * times, left = Mx * times;
    const double all[] = {x[i].x, x[i].y, z[i].x, z[i].y};
    const double duals[] = {right.x, -right.y, left.x, -left.y};
    for (int row = 0; row < 4; row++) {
      rows[row * K + i] = all[row];
      dual[row * K + i] = duals[row];
    }
  }
  if (threadIdx.x == 0) {
    turn[0] = turn[3] = value.x;
    turn[1] = -value.y;
    turn[2] = value.y;
    const Complex over = reciprocal(value);
    Complex power = over;
    for (int term = 0; term < TERMS; term++, power = power * over) {
      double* upper = weights + 2 * term;
      double* lower = upper + 2 * TERMS;
      upper[0] = lower[1] = power.x;
      upper[1] = -power.y;
      lower[0] = power.y;
    }
  }
}

// L L^T = the matrix of inner products, and L^-T; 0 if there is none.
__device__ void factorize(Square<Complex> (&room)[2], const double* gram, double* basis,
                          double* factor, double* sound, int i, int j) {
  Square<double>& a = reinterpret_cast<Square<double>&>(room[0]);
  Square<double>& L = reinterpret_cast<Square<double>&>(room[1]);
  a[i][j] = gram[i * 4 * K + j];
  L[i][j] = 0.0;
  bool good = true;
  for (int p = 0; p < K; p++) {
    __syncthreads();
    const double d = a[p][p], f = a[i][p], g = a[j][p];
    good = good && d > 0.0;
    if (j == p && i >= p) L[i][p] = f / sqrt(d);
    if (i > p && j > p) a[i][j] -= f * g / d;
  }
  __syncthreads();
  factor[i * K + j] = L[i][j];
  // warp i has column i of the inverse, lane j its entry j
  double rest = i == j ? 1.0 : 0.0, y = 0.0;
  for (int m = 0; m < K; m++) {
    const double next = __shfl_sync(ALL, rest, m) / L[m][m];
    if (j == m) y = next;
    if (j > m) rest -= L[j][m] * next;
  }
  basis[i * K + j] = y;
  if (threadIdx.x == 0) *sound = good ? 1.0 : 0.0;
}

extern "C" __global__ __launch_bounds__(THREADS) void pencil(
    const double* gram, const double* lead, double* rows, double* dual, double* basis, double* turn,
    double* weights, double* factor, double* sound) {
  __shared__ Square<Complex> room[2];
  const int i = threadIdx.x / K, j = threadIdx.x % K;
  if (blockIdx.x == 0) {
    iterate(room, gram, lead, rows, dual, turn, weights, i, j);
  } else {
    const int side = blockIdx.x - 1;
    factorize(room, gram + side * (4 * K * K + K), basis + side * K * K, factor + side * K * K,
              sound + side, i, j);
  }
}
