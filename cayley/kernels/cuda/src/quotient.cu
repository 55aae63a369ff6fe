// What a step of following an eigenpair has found, from its vectors: one block.
//
// sizes.cuh, which eigenpair.py writes, defines K, TERMS, THREADS and EPS. The numbers of the
// status stand in the order of the Status of eigenvalue/tracker.py.
#include "sizes.cuh"

constexpr unsigned ALL = 0xffffffffu;
constexpr int WARPS = THREADS / 32;
constexpr int EVENTS = 8;
// Residuals from which on vectors are none: what is known already stays.
constexpr double ROUGH = 0.1;

// The sums of N numbers over all threads.
template <int N>
__device__ void add_up(double (&sums)[N]) {
  __shared__ double parts[N][WARPS];
  __shared__ double totals[N];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int n = 0; n < N; n++) {
    double value = sums[n];
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(ALL, value, step);
    if (lane == 0) parts[n][warp] = value;
  }
  __syncthreads();
  if (warp < N) {
    double value = lane < WARPS ? parts[warp][lane] : 0.0;
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(ALL, value, step);
    if (lane == 0) totals[warp] = value;
  }
  __syncthreads();
  for (int n = 0; n < N; n++) sums[n] = totals[n];
  __syncthreads();
}

extern "C" __global__ __launch_bounds__(THREADS) void quotient(
    const double* u, const double* Au, const double* residual, const double* rows,
    const double* factor, const double* sound, double* status, double* lead, bool* latched,
    long long* counts, float* answer, bool* ok, int s) {
  const double *a = u, *b = u + s, *c = u + 2 * s, *d = u + 3 * s;
  const double *Aa = Au, *Ab = Au + s, *cA = Au + 2 * s, *dA = Au + 3 * s;
  double sums[8] = {};
  for (int i = threadIdx.x; i < s; i += THREADS) {
    const double ur = a[i], ui = b[i], wr = c[i], wi = d[i], Ur = Aa[i], Ui = Ab[i];
    const double r0 = residual[i], r1 = residual[s + i];
    const double r2 = residual[2 * s + i], r3 = residual[3 * s + i];
    sums[0] += ur * ur + ui * ui;
    sums[1] += wr * wr + wi * wi;
    sums[2] += wr * ur - wi * ui;
    sums[3] += wr * ui + wi * ur;
    sums[4] += wr * Ur - wi * Ui;
    sums[5] += wr * Ui + wi * Ur;
    sums[6] += r0 * r0 + r1 * r1;
    sums[7] += r2 * r2 + r3 * r3;
  }
  add_up(sums);
  const double uu = sums[0], ww = sums[1], cr = sums[2], ci = sums[3], cc = cr * cr + ci * ci;
  const double tr = (sums[4] * cr + sums[5] * ci) / cc, ti = (sums[5] * cr - sums[4] * ci) / cc;
  double rest[2] = {};
  for (int i = threadIdx.x; i < s; i += THREADS) {
    const double ur = a[i], ui = b[i], wr = c[i], wi = d[i];
    const double p = Aa[i] - (tr * ur - ti * ui), q = Ab[i] - (tr * ui + ti * ur);
    const double v = cA[i] - (tr * wr - ti * wi), w = dA[i] - (tr * wi + ti * wr);
    rest[0] += p * p + q * q;
    rest[1] += v * v + w * w;
  }
  add_up(rest);
  const double modulus = sqrt(tr * tr + ti * ti);
  const double old_r = status[0], old_i = status[1], scale = sqrt(old_r * old_r + old_i * old_i);
  const double rho = modulus * scale;
  const double r_u = sqrt(rest[0] / uu) / modulus, r_v = sqrt(rest[1] / ww) / modulus;
  // written so that NaN is not good
  const bool good = sound[0] * sound[1] == 1.0 && r_u < ROUGH && r_v < ROUGH && rho > 0.0;
  const bool closed = *latched || (good && rho > 1.0);
  const double denominator = closed ? (good ? rho : scale) + EPS : 1.0;
  // conj(lambda) / (rho w.u), and minus what the normalisation makes of it
  const double times = closed ? -1.0 / (denominator * modulus * cc) : 0.0;
  const double fr = times * (tr * cr - ti * ci), fi = -times * (tr * ci + ti * cr);
  for (int i = threadIdx.x; i < s; i += THREADS) {
    answer[i] = good ? (float)(fr * c[i] - fi * d[i]) : 0.0f;
    answer[s + i] = good ? (float)-(fr * d[i] + fi * c[i]) : 0.0f;
    answer[2 * s + i] = good ? (float)a[i] : 0.0f;
    answer[3 * s + i] = good ? (float)b[i] : 0.0f;
  }
  if (good && threadIdx.x < 4 * K) {
    const int row = threadIdx.x / K, column = threadIdx.x % K, side = row / 2;
    double total = 0.0;
    for (int i = 0; i < K; i++) total += rows[row * K + i] * factor[(side * K + i) * K + column];
    lead[row * K + column] = total;
  }
  __syncthreads();  // all have read the old values
  if (threadIdx.x == 0) {
    long long seen = 1;
    for (int event = 0; event < EVENTS; event++) seen += counts[event];
    counts[0] += 1;
    answer[4 * s] = (float)denominator;
    status[0] = good ? tr * scale : old_r;
    status[1] = good ? ti * scale : old_i;
    status[2] = r_u;
    status[3] = r_v;
    status[4] = sqrt(fmax(sums[6] / uu, sums[7] / ww));
    status[5] = sqrt(cc / (uu * ww));
    status[6] = scale;
    status[7] = (double)seen;
    status[8] = closed ? 1.0 : 0.0;
    status[10] = TERMS;
    *latched = closed;
    *ok = good;
  }
}
