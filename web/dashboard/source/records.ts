/** What the nodes show, as far as this page reads it. */

export interface Problem {
  type: string;
  message: string;
}

export interface ExceptionRecord extends Problem {
  traceback: string;
  global_step: number;
  epoch: number;
  batch: number | null;
  time: number;
}

export interface Summary {
  run_id: string;
  status: string;
  stage: string | null;
  epoch: number;
  global_step: number;
  batch: number | null;
  max_epochs: number | null;
  max_steps: number | null;
  batches: number | null;
  started: number;
  sampled: number;
  /** From 0 to 1. */
  progress?: number | null;
  steps_per_second?: number | null;
  seconds_left?: number | null;
  exception: ExceptionRecord | null;
  notices?: string[];
}

export interface Place {
  safe_point: string | null;
  global_step: number;
  epoch: number;
  batch: number | null;
}

export interface Change {
  what: string;
  old: unknown;
  new: unknown;
}

export interface CommandRecord {
  id: string;
  kind: string;
  args: Record<string, unknown>;
  execution: { when?: Record<string, unknown> };
  status: string;
  source: string;
  submitted: number;
  started: number | null;
  finished: number | null;
  place: Place | null;
  result: {
    changes?: Change[];
    notes?: string[];
    artifact?: { id: string; path?: string };
    will_be_overwritten_by?: string[];
    /** What else its kind tells. */
    [member: string]: unknown;
  } | null;
  error: Problem | null;
}

export interface HoldRecord {
  id: string;
  status: string;
  reason: string | null;
  is_pause: boolean;
  source: string;
  place: Place | null;
  since: number | null;
}

export interface HoldList {
  active: HoldRecord | null;
  exception: ExceptionRecord | null;
  pending: HoldRecord[];
  waiting: CommandRecord[];
  stopped: boolean;
}

export interface Metrics {
  global_step: number;
  epoch: number;
  metrics: Record<string, number | null>;
}

export interface Group {
  lr: number | null;
  parameters: number;
  options: Record<string, unknown>;
}

export interface Optimizers {
  global_step: number;
  optimizers: { name: string; groups: Group[] }[];
}

export interface Tunable {
  value: unknown;
  type: string;
  min?: number;
  max?: number;
  label?: string;
}

export interface Service {
  state: string;
  reason: string | null;
  since: number;
}
